-- Give a node's vote to a lease that a majority has just confirmed, and that this one has forgotten or never heard of.
-- Gives 1, or 0 when the vote is another's, or was since that lease was granted to somebody whom a majority chose.
--
-- ARGV  those of acquire.lua, with 13; 14 token, 15 µs since the grant
local token, ended = tonumber(ARGV[14]), tonumber(stored[6])
local raised = tonumber(redis.call('HGET', KEYS[1], 'r') or 0)
if raised > token or (ended and tonumber(ARGV[13]) <= ended) then return 0 end
for _, holder in ipairs(holders) do
  -- One that is not raised has no majority behind it, and cannot count on this vote without being raised here.
  if holder[EXPIRES] > now and holder[QUORUM] ~= UNRAISED then return 0 end
end
local ttl = tonumber(ARGV[7])
shape, last = ARGV[9], math.max(last, token)
holders = {{ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ttl, tonumber(ARGV[8]),
  now + ttl, token, now - tonumber(ARGV[15]), HELD, 0, tonumber(ARGV[13])}}
redis.call('HSET', KEYS[1], 'r', int(token))
save()
return 1
