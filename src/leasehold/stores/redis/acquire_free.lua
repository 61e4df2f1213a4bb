-- The name is free and nobody waits for it: granted as acquire.lua would, whose arguments these are. By far the most
-- frequent case, and done before the functions of entry.lua are made, which takes the server longer than all of this.
if #holders == 0 and waiting == 0 and not stored[6] and not ARGV[14] then
  local ttl = tonumber(ARGV[7])
  last = math.max(last + 1, now)
  redis.call('HSET', KEYS[1], 'f', '1', 't', string.format('%.0f', last), 's', ARGV[9], 'h', cmsgpack.pack({{
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ttl, tonumber(ARGV[8]),
    now + ttl, last, now, HELD, tonumber(ARGV[12]), tonumber(ARGV[13])}}))
  keep_for(ttl)
  return {1, last, now}
end
