-- Keep a text beside a name, or delete it, if the attempt still holds the name. Gives 1, or 0 when it does not.
--
-- KEYS[3]  hash: see read_note.lua
-- ARGV  1 attempt, 2 token, 3 the text; without it, what is there is deleted
local token = tonumber(ARGV[2])
for _, holder in ipairs(holders) do
  if holder[ATTEMPT] == ARGV[1] and holder[TOKEN] == token and holder[EXPIRES] > now
    and holder[STATE] ~= INTERRUPTED then
    if ARGV[3] then
      redis.call('HSET', KEYS[3], 'f', '1', 'n', ARGV[3])
    else
      redis.call('HDEL', KEYS[3], 'f', 'n')
    end
    return 1
  end
end
return 0
