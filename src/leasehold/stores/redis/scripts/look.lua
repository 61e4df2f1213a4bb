-- Who holds a name, those whose time is over too. Changes nothing.
--
-- gives for each holder: attempt, owner, kind, data, token, age µs, µs left, number of waiters
local found = {}
for _, holder in ipairs(holders) do
  found[#found + 1] = {seen(holder, waiting)}
end
return found
