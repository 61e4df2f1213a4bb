-- Set the token of a lease that a quorum has granted, and see that every later grant of this node is above it.
-- Gives 1, or 0 when the attempt does not hold the lease here.
--
-- ARGV  1 attempt, 2 token, 3 number of the try that was granted: this may come late, when a later one is held
local token = tonumber(ARGV[2])
for _, holder in ipairs(holders) do
  if holder[ATTEMPT] == ARGV[1] and holder[TRY] == tonumber(ARGV[3])
      and holder[EXPIRES] > now and holder[STATE] ~= INTERRUPTED then
    holder[TOKEN], holder[QUORUM] = token, 0
    last = math.max(last, token)
    redis.call('HSET', KEYS[1], 'r', int(token))  -- see vote.lua
    save()
    return 1
  end
end
return 0
