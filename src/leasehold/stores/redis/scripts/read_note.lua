-- The text that is kept beside a name. Gives it, or nil.
--
-- KEYS[1]  hash: f format, n the text. It has no expiry, unlike the name's own.
local stored = redis.call('HMGET', KEYS[1], 'f', 'n')
if stored[1] and stored[1] ~= '1' then
  return redis.error_reply('LEASEHOLDFORMAT ' .. stored[1])
end
return stored[2]
