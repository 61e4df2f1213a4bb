-- Give a lease back and grant it to whoever is next. Gives 1, or 0 when it was no longer this attempt's.
--
-- ARGV  1 attempt, 2 token (0: whatever it is; a node of a quorum may not have heard of the final one)
expire()
local token = tonumber(ARGV[2])
for place, holder in ipairs(holders) do
  if holder[ATTEMPT] == ARGV[1] and (holder[TOKEN] == token or token == 0) then
    let_go(place, holder[ACQUIRED] + holder[REST])
    promote()
    save()
    return 1
  end
end
if changed then save() end
return 0
