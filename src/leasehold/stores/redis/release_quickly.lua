-- Held by this attempt alone: given back as release.lua would, whose arguments these are. See acquire_free.lua.
if #holders == 1 and not ARGV[3] then
  local holder = holders[1]
  if holder[ATTEMPT] == ARGV[1] and (holder[TOKEN] == tonumber(ARGV[2]) or holder[PUSH] == UNRAISED)
      and holder[REST] == 0 and holder[EXPIRES] > now and holder[EXPIRES] - now < KEEP_MS * 1000 then
    if waiting == 0 then
      -- The record's expiry was set when the lease was granted or renewed, and is late enough.
      redis.call('HDEL', KEYS[1], 'h')
      return 1
    end
    local first = redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
    local waiter = shape == 'lock 1' and (waiting == 1 or looks_soon(tonumber(first[4]))) and alive(first[1])
    if waiter then
      holders = {}
      hand_to(waiter)
      save()
      return 1
    end
  end
end
