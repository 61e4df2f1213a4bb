-- An attempt has ended, but an acquire of it that nobody waits for may still be on its way: what comes yet is to find
-- this mark, and take nothing. It stands where the attempt would stand as a waiter, since every acquire reads that.
--
-- In the hash: w<attempt> the number of the last try that the mark is meant for, x all marks (msgpack): attempt and
-- end of each, oldest first. Whoever makes one removes those whose time is over.
local function mark(attempt, number)
  number = math.max(number, tonumber(stored[6]) or 0)  -- an older mark may come late
  leave(attempt)
  local listed = redis.call('HGET', KEYS[1], 'x')
  local marks, kept = listed and cmsgpack.unpack(listed) or {}, {}
  for place = math.max(1, #marks - 2 * MOST_MARKS + 3), #marks, 2 do
    if marks[place] ~= attempt and marks[place + 1] > now then
      kept[#kept + 1], kept[#kept + 2] = marks[place], marks[place + 1]
      marks[place] = false
    end
  end
  for place = 1, #marks, 2 do
    -- Not if the attempt went on, and waits.
    if marks[place] and tonumber(redis.call('HGET', KEYS[1], 'w' .. marks[place])) then
      redis.call('HDEL', KEYS[1], 'w' .. marks[place])
    end
  end
  kept[#kept + 1], kept[#kept + 2] = attempt, now + MARK_TTL
  redis.call('HSET', KEYS[1], 'w' .. attempt, int(number), 'x', cmsgpack.pack(kept))
  changed = true  -- the record may have been made by this
end

