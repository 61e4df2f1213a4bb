-- What the scripts of one name share: core/entry.py in Lua, on what record.lua has read, with grant.lua.
local function free(limit)
  for _, holder in ipairs(holders) do limit = limit - holder[WEIGHT] end
  return limit
end

local function capacity()
  return tonumber(string.match(shape or 'lock 1', '%d+$'))
end

-- The first waiter that is alive, and when it came; the dead before it are dropped.
local function head()
  while waiting > 0 do
    local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    local waiter = alive(first[1])
    if waiter then return waiter, tonumber(first[2]) end
    leave(first[1])
  end
end

local function soonest()
  local first
  for _, holder in ipairs(holders) do
    if not first or holder[EXPIRES] < first[EXPIRES] then first = holder end
  end
  return first
end

-- Tell the head of the queue when to look, unless it will soon do so and it is enough; the rest have time. But if nobody
-- hears that, it is dead or deaf, and the first of those behind it that is heard has to look in its place.
local function ring_head(soon_is_enough)
  local waiter, came = head()
  if not waiter or (soon_is_enough and looks_soon(came)) then return end
  local first = soonest()
  local news = first and ' next ' .. int(first[EXPIRES] - now) or ''
  if ring(waiter, news) or waiting == 1 then return end
  for _, attempt in ipairs(redis.call('ZRANGE', KEYS[2], 1, BEHIND)) do
    waiter = alive(attempt)
    if waiter and ring(waiter, news) then return end
  end
end

-- Grant to the head of the queue while it fits, and tell whoever is at the head after that.
local function promote()
  local moved = false
  while waiting > 0 and free(capacity()) > 0 do
    local waiter = head()
    if not waiter or waiter[WEIGHT] > free(capacity()) then break end
    hand_to(waiter)
    moved = true
  end
  if moved then ring_head(true) end
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
