-- Take the lease, claim what was granted meanwhile, queue (or keep one's place), or tell who has it.
--
-- ARGV  1 attempt, 2 owner, 3 kind, 4 data ('' for none), 5 session, 6 weight, 7 ttl µs, 8 rest µs,
--       9 shape and limit ('lock 1'), 10 fair, 11 queue, 12 whether a push may bring the lease (each '1' or '0');
--       12 is '2' on a node of a quorum (raise.lua)
-- gives {1, token, now, then what is known of who let it expire}
--       {0, place or -1, now, then the holder that expires first}
--       {-1, shape and limit that the name is in use with}
local attempt, ttl = ARGV[1], tonumber(ARGV[7])
local gone = expire()

for _, holder in ipairs(holders) do
  if holder[ATTEMPT] == attempt and holder[STATE] ~= INTERRUPTED then
    -- Its answer got lost, or it claims what a release granted it. Never shortens.
    holder[TTL], holder[STATE] = ttl, HELD
    holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)
    save()
    if gone then return {1, holder[TOKEN], now, seen(gone)} end
    return {1, holder[TOKEN], now}
  end
end

if #holders == 0 and waiting == 0 then
  shape = ARGV[9]
elseif shape ~= ARGV[9] then
  if changed then save() end
  return {-1, shape}
end

local place = waiting > 0 and redis.call('ZRANK', KEYS[2], attempt) or false
local packed = place and redis.call('HGET', KEYS[1], 'w' .. attempt)
if not packed then
  local weight = tonumber(ARGV[6])
  local mine = {attempt, ARGV[2], ARGV[3], ARGV[4], ARGV[5], weight, ttl, tonumber(ARGV[8]), 0, 0, 0, 0,
    tonumber(ARGV[12])}
  if free(capacity()) >= weight and not (waiting > 0 and ARGV[10] == '1') then
    grant(mine)
    mine[STATE], mine[EXPIRES] = HELD, now + ttl
    save()
    if gone then return {1, last, now, seen(gone)} end
    return {1, last, now}
  end
  if ARGV[11] == '1' then
    mine[EXPIRES] = now + WAITER_TTL
    redis.call('HSET', KEYS[1], 'f', '1', 's', shape, 'w' .. attempt, cmsgpack.pack(mine))
    redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[1], 'n', 1), attempt)
    redis.call('PEXPIRE', KEYS[2], KEEP_MS)
    place = redis.call('ZCARD', KEYS[2]) - 1
    waiting = place + 1
  end
else
  local mine = cmsgpack.unpack(packed)
  if mine[EXPIRES] - now < WAITER_TTL * 2 / 3 then
    mine[EXPIRES] = now + WAITER_TTL
    redis.call('HSET', KEYS[1], 'w' .. attempt, cmsgpack.pack(mine))
    redis.call('PEXPIRE', KEYS[2], KEEP_MS)
  end
end

if changed then save() end
local first = soonest()
if first then return {0, place or -1, now, seen(first)} end
return {0, place or -1, now}
