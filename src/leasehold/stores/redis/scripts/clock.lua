-- The server's clock, in µs since 1970.
--
-- KEYS[1]  only says which node of a cluster to ask
local clock = redis.call('TIME')
return clock[1] * 1000000 + clock[2]
