-- Renew many leases, each a name of its own. Never takes one that is gone.
--
-- KEYS  the hashes of the names (see entry.lua)
-- ARGV  for each: attempt, token, ttl µs
-- gives for each: 1 renewed, 0 gone, -1 broken
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local outcomes = {}
for place, key in ipairs(KEYS) do
  local attempt, token, ttl = ARGV[place * 3 - 2], tonumber(ARGV[place * 3 - 1]), tonumber(ARGV[place * 3])
  local stored = redis.call('HMGET', key, 'f', 'h')
  if stored[1] and stored[1] ~= '1' then
    return redis.error_reply('LEASEHOLDFORMAT ' .. stored[1])
  end
  local holders = stored[2] and cmsgpack.unpack(stored[2]) or {}
  outcomes[place] = 0
  for _, holder in ipairs(holders) do
    if holder[1] == attempt and (holder[10] == token or holder[13] == 2) and holder[9] > now then
      if holder[12] == 3 then
        outcomes[place] = -1
      else
        holder[7], holder[12] = ttl, 2
        holder[9] = math.max(holder[9], now + ttl)
        redis.call('HSET', key, 'h', cmsgpack.pack(holders))
        redis.call('PEXPIRE', key, string.format('%.0f', 86400000 + math.ceil(ttl / 1000)))
        outcomes[place] = 1
      end
    end
  end
end
return outcomes
