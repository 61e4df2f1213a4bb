-- A name that is free, and that nobody waits for, is granted here, before the functions of entry.lua are made: making
-- them takes the server longer than all of this, and most acquires are of this kind. The arguments are acquire.lua's.
if #holders == 0 and waiting == 0 and not stored[6] and not ARGV[14] then
  local ttl = tonumber(ARGV[7])
  last = math.max(last + 1, now)
  redis.call('HSET', KEYS[1], 'f', '1', 't', string.format('%.0f', last), 's', ARGV[9], 'h', cmsgpack.pack({{
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ttl, tonumber(ARGV[8]),
    now + ttl, last, now, HELD, tonumber(ARGV[12]), tonumber(ARGV[13])}}))
  keep_for(ttl)
  return {1, last, now}
end
