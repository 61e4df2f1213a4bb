-- Take several names in one step, or none of them: each as acquire.lua would at once.
--
-- KEYS  for each name: its hash and its queue (see record.lua)
-- ARGV  for each name: the first 12 of acquire.lua
-- gives {1, for each name {token, then what is known of who let it expire}}
--       {0, place, now, then the holder that expires first}: that of the first name that is busy
--       {-1, place, shape and limit that the name is in use with}
--       {2}: a name is free, but the queue has to move up first; or nobody waits for the answer any more
local answer, permits = {1}, {}
for place = 1, #KEYS / 2 do
  local key, at = KEYS[place * 2 - 1], (place - 1) * 12
  local found = redis.call('HMGET', key, 'f', 't', 's', 'h', 'w' .. ARGV[at + 1])
  if found[1] and found[1] ~= '1' then
    return redis.error_reply('LEASEHOLDFORMAT ' .. found[1])
  end
  if found[5] then return {2} end  -- it comes too late: see mark.lua
  local gone, first, mine
  for _, holder in ipairs(found[4] and sound(cmsgpack.unpack(found[4])) or {}) do
    if holder[EXPIRES] <= now then
      gone = holder
    elseif holder[ATTEMPT] == ARGV[at + 1] and holder[STATE] ~= INTERRUPTED then
      mine = holder  -- its answer got lost
    elseif not first or holder[EXPIRES] < first[EXPIRES] then
      first = holder
    end
  end
  local waiters = redis.call('ZCARD', KEYS[place * 2])
  if not mine then
    if (first or waiters > 0) and found[3] ~= ARGV[at + 9] then return {-1, place - 1, found[3]} end
    if first then return {0, place - 1, now, seen(first, waiters)} end
    if waiters > 0 then return {2} end
  end
  local ttl = tonumber(ARGV[at + 7])
  local token = mine and mine[TOKEN] or math.max(sound_token(found[2]) + 1, now)
  permits[place] = {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], tonumber(ARGV[at + 6]), ttl,
    tonumber(ARGV[at + 8]), now + ttl, token, mine and mine[ACQUIRED] or now, HELD, tonumber(ARGV[at + 12])}
  answer[place + 1] = gone and {token, seen(gone, waiters)} or {token}
end

for place, permit in ipairs(permits) do
  local key = KEYS[place * 2 - 1]
  redis.call('HSET', key, 'f', '1', 't', string.format('%.0f', permit[TOKEN]), 's', ARGV[place * 12 - 3],
    'h', cmsgpack.pack({permit}))
  redis.call('PEXPIRE', key, string.format('%.0f', KEEP_MS + math.ceil((2 * HOUR + permit[TTL]) / 1000)))  -- see keep_for
end
return answer
