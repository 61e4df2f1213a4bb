-- Renew many leases, each a name of its own. Never takes one that is gone.
--
-- KEYS  the hashes of the names (see record.lua)
-- ARGV  for each: attempt, token, ttl µs
-- gives for each: 1 renewed, 0 gone, -1 broken, or the error if its record cannot be read

-- All holders of a name, which of them asks, and when the last of the others expires.
local function find(key, attempt, token)
  local stored = redis.call('HMGET', key, 'f', 'h')
  if stored[1] and stored[1] ~= '1' then error('LEASEHOLDFORMAT ' .. stored[1], 0) end
  local holders, mine, latest = stored[2] and sound(cmsgpack.unpack(stored[2])) or {}, nil, 0
  for _, holder in ipairs(holders) do
    if holder[ATTEMPT] == attempt and (holder[TOKEN] == token or holder[QUORUM] == UNRAISED) and holder[EXPIRES] > now then
      mine = holder
    else
      latest = math.max(latest, holder[EXPIRES])
    end
  end
  return holders, mine, latest
end

local outcomes = {}
for place, key in ipairs(KEYS) do
  local ttl = tonumber(ARGV[place * 3])
  -- Reading alone: what is wrong with one record is no other's matter, but that nothing can be written is everybody's.
  local well, holders, mine, latest = pcall(find, key, ARGV[place * 3 - 2], tonumber(ARGV[place * 3 - 1]))
  if not well then
    outcomes[place] = type(holders) == 'table' and holders.err or tostring(holders)
  elseif not mine then
    outcomes[place] = 0
  elseif mine[STATE] == INTERRUPTED then
    outcomes[place] = -1
  else
    mine[TTL], mine[STATE] = ttl, HELD
    mine[EXPIRES] = math.max(mine[EXPIRES], now + ttl)
    redis.call('HSET', key, 'h', cmsgpack.pack(holders))
    -- Not shorter than keep_for in record.lua has it, which counts on what it has set.
    local left = math.max(latest, mine[EXPIRES]) - now
    redis.call('PEXPIRE', key, string.format('%.0f', KEEP_MS + math.ceil((2 * HOUR + left) / 1000)))
    outcomes[place] = 1
  end
end
return outcomes
