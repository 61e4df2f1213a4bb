-- What is asked for, as it is stored.
local function wanted(expires)
  return {ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]),
    expires, 0, 0, 0, tonumber(ARGV[12]), not ARGV[14] and tonumber(ARGV[13]) or nil}
end

-- Queue behind all others. Returns the place in the queue.
local function join_queue()
  local came = string.format('%.0f', math.max((stored[5] or 0) + 1, now))
  redis.call('HSET', KEYS[1], 'f', '1', 's', shape, 'n', came, 'w' .. ARGV[1], cmsgpack.pack(wanted(now + WAITER_TTL)))
  redis.call('ZADD', KEYS[2], came .. '.5', ARGV[1])
  if waiting == 0 or math.floor((stored[5] or 0) / HOUR) ~= math.floor(now / HOUR) then
    redis.call('PEXPIRE', KEYS[2], KEEP_MS)
  end
  waiting = waiting + 1
  return waiting - 1
end

-- A lock that another holds, and who asks comes to wait for it: queued as acquire.lua would. See acquire_free.lua.
if #holders == 1 and holders[1][EXPIRES] > now and holders[1][ATTEMPT] ~= ARGV[1] and not ARGV[14]
    and shape == 'lock 1' and ARGV[9] == shape and ARGV[11] == '1' and not stored[6] then
  return {0, join_queue(), now, LOOK, holders[1][EXPIRES] - now}
end
