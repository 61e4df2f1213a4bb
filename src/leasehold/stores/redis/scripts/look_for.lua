-- Keep the places of many waiters, and tell how their names stand. Changes nothing else, and calls nobody: where the
-- queue is to move up, the next waiter has to ask for itself.
--
-- KEYS  for each name: its hash and its queue (see record.lua)
-- ARGV  for each name: how many wait for it, then their attempts
-- gives for each name {now, 1 if its queue is to move up, else 0, {the place of each; -1: it must ask for itself; below
--       -1: it is new, and -2 less its place}, then the holder that expires first}. A waiter that is new has to look soon
--       once more: it may become the next without being told
local SLACK = 200000  -- a clock that is set back by less makes nobody new who was told here that it is not
local refreshed = false

local function place_of(attempt, key, queue)
  local place = redis.call('ZRANK', queue, attempt)
  local packed = place and redis.call('HGET', key, 'w' .. attempt)
  if not packed then return -1 end
  local new = looks_soon(tonumber(redis.call('ZRANGE', queue, place, place, 'WITHSCORES')[2]), SLACK)
  local waiter = cmsgpack.unpack(packed)
  if waiter[EXPIRES] - now < WAITER_TTL * 4 / 5 then
    waiter[EXPIRES] = now + WAITER_TTL
    redis.call('HSET', key, 'w' .. attempt, cmsgpack.pack(waiter))
    refreshed = true
  end
  if new then return -2 - place end
  return place
end

-- Whether the first in the queue has died, or could have what is free.
local function may_have(free, key, queue)
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  local packed = first and redis.call('HGET', key, 'w' .. first)
  local waiter = packed and cmsgpack.unpack(packed)
  return not waiter or waiter[EXPIRES] <= now or waiter[WEIGHT] <= free
end

-- Fails when something that is not ours, or of a newer leasehold, is in their way.
local function look(key, queue, attempts)
  local found, waiters = redis.call('HMGET', key, 'f', 's', 'h'), redis.call('ZCARD', queue)
  assert(found[1] == '1')
  local places, moves, first = {}, 0, nil
  refreshed = false
  for number, attempt in ipairs(attempts) do places[number] = place_of(attempt, key, queue) end
  if refreshed then redis.call('PEXPIRE', queue, KEEP_MS) end
  local free = tonumber(string.match(found[2] or 'lock 1', '%d+$'))
  for _, holder in ipairs(found[3] and sound(cmsgpack.unpack(found[3])) or {}) do
    if holder[EXPIRES] <= now then moves = 1 end
    if not first or holder[EXPIRES] < first[EXPIRES] then first = holder end
    free = free - holder[WEIGHT]
  end
  if free > 0 and may_have(free, key, queue) then moves = 1 end
  return first and {now, moves, places, seen(first, waiters)} or {now, moves, places}
end

local answer, arg = {}, 1
for name = 1, #KEYS / 2 do
  local attempts = {}
  for number = 1, tonumber(ARGV[arg]) do attempts[number] = ARGV[arg + number] end
  arg = arg + #attempts + 1
  local well, told = pcall(look, KEYS[name * 2 - 1], KEYS[name * 2], attempts)
  if not well then  -- they alone are to learn why
    told = {now, 0, {}}
    for number = 1, #attempts do told[3][number] = -1 end
  end
  answer[name] = told
end
return answer
