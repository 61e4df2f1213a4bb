-- Whether a waiter that came then will look by itself before long: see record.lua. Not one whose time is far ahead: the
-- clock was set back since, and how long it has waited is not known. ``slack``: by how much more it may be either way.
local function looks_soon(came, slack)
  return math.abs(came - now) < NEW + (slack or 0) and came % 1 ~= 0
end
