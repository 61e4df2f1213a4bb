-- Give a lease back and grant it to whoever is next. Gives 1, or 0 when it was no longer this attempt's.
--
-- ARGV  1 attempt, 2 token, 3 number of the last try that may yet arrive, if there is one (mark.lua)
if ARGV[3] then mark(ARGV[1], ARGV[3]) end
expire()
local token = tonumber(ARGV[2])
for place, holder in ipairs(holders) do
  if holder[ATTEMPT] == ARGV[1] and (holder[TOKEN] == token or holder[QUORUM] == UNRAISED) then
    let_go(place, holder[ACQUIRED] + holder[REST])
    promote()
    save()
    return 1
  end
end
if ARGV[3] then  -- what a late try was granted after that had expired was never used
  for place = #holders, 1, -1 do
    local holder = holders[place]
    -- Not what a later try holds: this may itself come late.
    if holder[ATTEMPT] == ARGV[1] and (holder[TRY] or 0) <= tonumber(ARGV[3]) then table.remove(holders, place) end
  end
  promote()
end
if changed then save() end
return 0
