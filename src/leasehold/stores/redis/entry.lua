-- What the scripts of one name share: leasehold/entry.py in Lua. Each of them starts with this text.
--
-- KEYS[1]  hash: f format, t last token, s shape and limit, h holders (msgpack), n arrivals, w<attempt> a waiter
-- KEYS[2]  sorted set: the queue, attempts by order of arrival
local ATTEMPT, OWNER, KIND, DATA, SESSION, WEIGHT, TTL, REST, EXPIRES, TOKEN, ACQUIRED, STATE, PUSH =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
local UNRAISED = 2  -- in PUSH: one node of a quorum, which has yet to hear of the final token (raise.lua)
local GRANTED, HELD, INTERRUPTED, RESTING = 1, 2, 3, 4
local FIRST_TERM, WAITER_TTL, KEEP_MS = 700000, 15000000, 86400000
local CHANNEL = 'leasehold:session:'

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local stored = redis.call('HMGET', KEYS[1], 'f', 't', 's', 'h')
if stored[1] and stored[1] ~= '1' then
  return redis.error_reply('LEASEHOLDFORMAT ' .. stored[1])
end
local last = tonumber(stored[2] or 0)
local shape = stored[3]
local holders = stored[4] and cmsgpack.unpack(stored[4]) or {}
local waiting = redis.call('ZCARD', KEYS[2])
local changed = false

local function int(number)
  return string.format('%.0f', number)  -- '..' would round microseconds
end

local function free(limit)
  for _, holder in ipairs(holders) do limit = limit - holder[WEIGHT] end
  return limit
end

local function capacity()
  return tonumber(string.match(shape or 'lock 1', '%d+$'))
end

local function leave(attempt)
  waiting = waiting - redis.call('ZREM', KEYS[2], attempt)
  redis.call('HDEL', KEYS[1], 'w' .. attempt)
end

-- The first waiter that is alive; the dead before it are dropped.
local function head()
  while waiting > 0 do
    local attempt = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    local packed = redis.call('HGET', KEYS[1], 'w' .. attempt)
    if packed then
      local waiter = cmsgpack.unpack(packed)
      if waiter[EXPIRES] > now then return waiter end
    end
    leave(attempt)
  end
end

local function ring(permit, news)
  if permit[SESSION] ~= '' then
    redis.call('PUBLISH', CHANNEL .. permit[SESSION], permit[ATTEMPT] .. news)
  end
end

local function soonest()
  local first
  for _, holder in ipairs(holders) do
    if not first or holder[EXPIRES] < first[EXPIRES] then first = holder end
  end
  return first
end

-- Tell the head of the queue when to look; the rest have time.
local function ring_head()
  local waiter = head()
  if waiter then
    local first = soonest()
    ring(waiter, first and ' next ' .. int(first[EXPIRES] - now) or '')
  end
end

local function grant(permit)
  last = math.max(last + 1, now)
  permit[TOKEN], permit[ACQUIRED], permit[STATE] = last, now, GRANTED
  permit[EXPIRES] = now + math.min(permit[TTL], FIRST_TERM)
  holders[#holders + 1] = permit
  changed = true
end

-- Grant to the head of the queue while it fits, and tell whoever is at the head after that.
local function promote()
  local moved = false
  while waiting > 0 and free(capacity()) > 0 do
    local waiter = head()
    if not waiter or waiter[WEIGHT] > free(capacity()) then break end
    leave(waiter[ATTEMPT])
    grant(waiter)
    ring(waiter, waiter[PUSH] == 1 and ' granted ' .. int(last) .. ' ' .. int(now) or '')
    moved = true
  end
  if moved then ring_head() end
end

-- Drop the holders whose time is over and let the queue move up; returns the last that was dropped.
local function expire()
  local gone
  for place = #holders, 1, -1 do
    if holders[place][EXPIRES] <= now then
      gone = gone or holders[place]
      table.remove(holders, place)
      changed = true
    end
  end
  promote()
  return gone
end

local function let_go(place, not_before)
  local holder = holders[place]
  if not_before > now then
    holder[STATE], holder[EXPIRES] = RESTING, not_before
    holder[ATTEMPT], holder[SESSION] = '', ''
    ring_head()  -- it has to learn the new expiry
  else
    table.remove(holders, place)
  end
end

local function save()
  local keep = 0
  if #holders == 0 then
    redis.call('HSET', KEYS[1], 'f', '1', 't', int(last))
    redis.call('HDEL', KEYS[1], 'h')
  else
    redis.call('HSET', KEYS[1], 'f', '1', 't', int(last), 's', shape, 'h', cmsgpack.pack(holders))
    for _, holder in ipairs(holders) do keep = math.max(keep, holder[EXPIRES] - now) end
  end
  local ms = int(KEEP_MS + math.ceil(keep / 1000))
  redis.call('PEXPIRE', KEYS[1], ms)
  if waiting > 0 then redis.call('PEXPIRE', KEYS[2], ms) end
end

local function seen(holder)
  return holder[ATTEMPT], holder[OWNER], holder[KIND], holder[DATA], holder[TOKEN],
    now - holder[ACQUIRED], holder[EXPIRES] - now, waiting
end
