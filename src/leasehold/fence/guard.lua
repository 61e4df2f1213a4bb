-- Run commands unless a later holder has been here.
-- KEYS[1]  the greatest token so far; KEYS[2…] what the commands touch, for clusters and ACLs
-- ARGV[1]  the caller's token; then for each command the number of its words, and the words
-- Returns {1, reply, reply, …}, or {0} when refused.
-- Tokens are compared as text, by length first: a Lua number would lose digits above 2^53.
local own, seen = ARGV[1], redis.call('get', KEYS[1])
if seen and (#seen > #own or (#seen == #own and seen > own)) then
    return {0}
end
redis.call('set', KEYS[1], own)
local replies, at = {1}, 2
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
return replies
