-- What every script of one name begins with: its record, as it is stored.
--
-- KEYS[1]  hash: f format, t last token, s shape and limit, h holders (msgpack), n the last arrival,
--          r the last token that a majority chose (raise.lua), w<attempt> a waiter,
--          or a mark of one who has ended, and x those (mark.lua)
-- KEYS[2]  sorted set: the queue, attempts by order of arrival: each by its time in µs, or one more than the last.
--          And a half, if it looks soon by itself: waiters of leasehold 0.1 do not
local stored = redis.call('HMGET', KEYS[1], 'f', 't', 's', 'h', 'n', 'w' .. (ARGV[1] or ''))
if stored[1] and stored[1] ~= '1' then
  return redis.error_reply('LEASEHOLDFORMAT ' .. stored[1])
end
local last = sound_token(stored[2])
local granted = last
local shape = stored[3]
local holders = stored[4] and sound(cmsgpack.unpack(stored[4])) or {}
local waiting = redis.call('ZCARD', KEYS[2])
local changed = false

-- Have the record outlive what is held, which is over in so many µs, by a day. Done once in an hour's grants, for an hour
-- more than that: a token is, but for clocks that were set, the time of its grant.
local function keep_for(left)
  if left > HOUR or math.floor(granted / HOUR) ~= math.floor(now / HOUR) then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', KEEP_MS + math.ceil((2 * HOUR + left) / 1000)))
  end
end
