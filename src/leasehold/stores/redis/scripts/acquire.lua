-- Take the lease, claim what was granted meanwhile, queue (or keep one's place), or tell who has it.
--
-- ARGV  1 attempt, 2 owner, 3 kind, 4 data ('' for none), 5 session, 6 weight, 7 ttl µs, 8 rest µs,
--       9 shape and limit ('lock 1'), 10 fair, 11 queue (each '1' or '0'), 12 '2' on a node of a quorum (raise.lua),
--       else '0';
--       13 number of this try, 0 without it: those up to the number in a mark come too late (mark.lua);
--       or 13, 14 attempt and token of the permit to take over, if that is wanted
-- gives {1, token, now, then what is known of who let it expire}
--       {0, place or -1, now, µs after which to look again, or 0, µs until the first holder expires, or -1, then that
--       holder, unless the attempt has just joined the queue: it will ask again before it gives up}
--       {-1, shape and limit that the name is in use with}
--       {-2}: the permit to take over is not there

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

local ended = tonumber(stored[6])
if ended and tonumber(not ARGV[14] and ARGV[13] or 0) <= ended then return {0, -1, now, 0, -1} end
local attempt, ttl = ARGV[1], tonumber(ARGV[7])
local gone = expire()

for _, holder in ipairs(holders) do
  if holder[ATTEMPT] == attempt and holder[STATE] ~= INTERRUPTED then
    -- Its answer got lost, or it claims what a release granted it. Never shortens.
    holder[TTL], holder[STATE] = ttl, HELD
    if not ARGV[14] and ARGV[13] then holder[TRY] = math.max(holder[TRY] or 0, tonumber(ARGV[13])) end
    holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)
    save()
    if gone then return {1, holder[TOKEN], now, seen(gone, waiting)} end
    return {1, holder[TOKEN], now}
  end
end

local weight = tonumber(ARGV[6])
local mine = wanted(0)

if ARGV[14] then
  local token = tonumber(ARGV[14])
  for place, old in ipairs(holders) do
    if old[ATTEMPT] == ARGV[13] and old[TOKEN] == token and old[STATE] ~= INTERRUPTED and old[WEIGHT] >= weight then
      table.remove(holders, place)
      grant(mine)
      mine[STATE], mine[EXPIRES] = HELD, now + ttl
      mine[REST] = math.max(mine[REST], old[ACQUIRED] + old[REST] - now)
      ring(old, '')
      promote()  -- it may be lighter than it was
      save()
      return {1, mine[TOKEN], now}
    end
  end
  if changed then save() end
  return {-2}
end

if #holders == 0 and waiting == 0 then
  shape = ARGV[9]
elseif shape ~= ARGV[9] then
  if changed then save() end
  return {-1, shape}
end

local place = waiting > 0 and redis.call('ZRANK', KEYS[2], attempt) or false
local packed = place and stored[6]
local look = 0
if not packed then
  if free(capacity()) >= weight and not (waiting > 0 and ARGV[10] == '1') then
    grant(mine)
    mine[STATE], mine[EXPIRES] = HELD, now + ttl
    save()
    if gone then return {1, last, now, seen(gone, waiting)} end
    return {1, last, now}
  end
  if ARGV[11] == '1' then
    place, look = join_queue(), LOOK
  end
else
  local came = redis.call('ZRANGE', KEYS[2], place, place, 'WITHSCORES')[2]
  if looks_soon(tonumber(came)) then look = LOOK end
  mine = cmsgpack.unpack(packed)
  if mine[EXPIRES] - now < WAITER_TTL * 2 / 3 then
    mine[EXPIRES] = now + WAITER_TTL
    redis.call('HSET', KEYS[1], 'w' .. attempt, cmsgpack.pack(mine))
    redis.call('PEXPIRE', KEYS[2], KEEP_MS)
  end
end

if changed then save() end
local first = soonest()
if first then return {0, place or -1, now, look, first[EXPIRES] - now, seen(first, waiting)} end
return {0, place or -1, now, look, -1}
