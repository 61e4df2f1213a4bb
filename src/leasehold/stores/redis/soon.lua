-- Whether a waiter that came then will look by itself before long: see record.lua.
local function looks_soon(came)
  return came > now - NEW and came % 1 ~= 0
end
