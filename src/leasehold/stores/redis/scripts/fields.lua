-- What every script begins with: the fields of a permit, held or waited for; how long things last; the form that a
-- record must have; and the time.
local ATTEMPT, OWNER, KIND, DATA, SESSION, WEIGHT, TTL, REST, EXPIRES, TOKEN, ACQUIRED, STATE, QUORUM, TRY =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14  -- the last only where tries are numbered (acquire.lua)
local UNRAISED = 2  -- in QUORUM: one node of a quorum, which has yet to hear of the final token (raise.lua)
local GRANTED, HELD, INTERRUPTED, RESTING = 1, 2, 3, 4
local FIRST_TERM, WAITER_TTL = 700000, 15000000  -- as in core/timing.py, in µs
local HOUR, KEEP_MS = 3600000000, 86400000
local MARK_TTL, MOST_MARKS = 120000000, 1000  -- a mark outlasts what a closed connection still tries to deliver
local NEW, LOOK = 300000, 800000  -- who has come so recently is not told that it is next: it looks so soon by itself
local BEHIND = 20  -- how many may be called in place of a head that does not hear
local CLUSTERED = 'C'  -- what sessions in a cluster begin with
local CHANNEL = 'leasehold:session:'

-- The holders of a record, if each has the form of a permit: others may have written there.
local function sound(holders)
  for _, holder in ipairs(holders) do
    for field = ATTEMPT, SESSION do
      if type(holder[field]) ~= 'string' then error('LEASEHOLDRECORD a holder', 0) end
    end
    for field = WEIGHT, STATE do
      local value = holder[field]
      if type(value) ~= 'number' or not (math.abs(value) < 2 ^ 53) then error('LEASEHOLDRECORD a holder', 0) end
    end
  end
  return holders
end

-- The last token of a record. One that a Lua number cannot count on from is not ours.
local function sound_token(stored)
  local token = tonumber(stored or 0)
  if not token or not (token >= 0 and token < 2 ^ 53 - 1) then error('LEASEHOLDRECORD a token', 0) end
  return token
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
