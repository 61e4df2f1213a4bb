-- How a lease passes to a waiter: for all scripts that can bring that about.
local function int(number)
  return string.format('%.0f', number)  -- '..' would round microseconds
end

local function leave(attempt)
  waiting = waiting - redis.call('ZREM', KEYS[2], attempt)
  redis.call('HDEL', KEYS[1], 'w' .. attempt)
end

-- Gives whether anybody heard it, as far as this server can tell: in a cluster each counts only those at itself.
local function ring(permit, news)
  local session = permit[SESSION]
  return session ~= '' and redis.call('PUBLISH', CHANNEL .. session, permit[ATTEMPT] .. news) > 0
    or string.sub(session, 1, 1) == CLUSTERED
end

local function grant(permit)
  last = math.max(last + 1, now)
  permit[TOKEN], permit[ACQUIRED], permit[STATE] = last, now, GRANTED
  permit[EXPIRES] = now + math.min(permit[TTL], FIRST_TERM)
  holders[#holders + 1] = permit
  changed = true
end

local function hand_to(waiter)
  leave(waiter[ATTEMPT])
  grant(waiter)
  ring(waiter, '')  -- a push is not believed: the waiter asks, and so claims what it was granted
end

-- A waiter, if it is alive.
local function alive(attempt)
  local packed = redis.call('HGET', KEYS[1], 'w' .. attempt)
  local waiter = packed and cmsgpack.unpack(packed)
  return waiter and waiter[EXPIRES] > now and waiter
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
  keep_for(keep)
end
