-- See to it that an attempt neither holds nor waits. Gives 1 when it did, else 0.
--
-- ARGV  1 attempt, 2 number of the last try that may yet arrive, '' if there is none (mark.lua),
--       3 number of the last try that is meant: this may itself come late, when a later one has been granted
local late, meant = ARGV[2] ~= '' and ARGV[2], tonumber(ARGV[3])
if not stored[1] and not late then return 0 end
local found = 0
for place = #holders, 1, -1 do
  if holders[place][ATTEMPT] == ARGV[1] and (holders[place][TRY] or 0) <= (meant or math.huge) then
    table.remove(holders, place)  -- what was never used is not subject to min_hold
    found = 1
  end
end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
  redis.call('HDEL', KEYS[1], 'w' .. ARGV[1])
  waiting = waiting - 1
  found = 1
end
if late then mark(ARGV[1], late) end
expire()
if found == 1 then
  promote()
  ring_head()
end
save()
return found
