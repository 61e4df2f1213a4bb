-- Held by this attempt alone, and nobody waits: given back as release.lua would, whose arguments these are. See
-- acquire_free.lua.
local holder = #holders == 1 and not ARGV[3] and holders[1]
local alone = holder and holder[ATTEMPT] == ARGV[1] and (holder[TOKEN] == tonumber(ARGV[2]) or holder[PUSH] == UNRAISED)
  and holder[REST] == 0 and holder[EXPIRES] > now and holder[EXPIRES] - now < KEEP_MS * 1000
if alone and waiting == 0 then
  -- The record's expiry was set when the lease was granted or renewed, and is late enough.
  redis.call('HDEL', KEYS[1], 'h')
  return 1
end
