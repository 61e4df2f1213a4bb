-- Refuse further renewal and tell the holder, or remove it by force. Gives 1, or 0 when nobody holds the name.
--
-- ARGV  1 force ('1' or '0')
if not stored[1] then return 0 end
local force = ARGV[1] == '1'
expire()
local held = 0
for _, holder in ipairs(holders) do
  if force or holder[STATE] ~= RESTING then
    holder[STATE] = INTERRUPTED
    ring(holder, '')
    held = 1
  end
end
if force and held == 1 then
  holders = {}
  promote()
end
save()
return held
