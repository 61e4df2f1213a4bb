-- Give a lease back and grant it to whoever is next. Gives 1, or 0 when it was no longer this attempt's.
--
-- ARGV  1 attempt, 2 token
expire()
local token = tonumber(ARGV[2])
for place, holder in ipairs(holders) do
  if holder[ATTEMPT] == ARGV[1] and (holder[TOKEN] == token or holder[PUSH] == UNRAISED) then
    let_go(place, holder[ACQUIRED] + holder[REST])
    promote()
    save()
    return 1
  end
end
if changed then save() end
return 0
