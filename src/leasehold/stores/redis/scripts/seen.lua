-- A holder, as a reply tells of it.
local function seen(holder, waiters)
  return holder[ATTEMPT], holder[OWNER], holder[KIND], holder[DATA], holder[TOKEN],
    now - holder[ACQUIRED], holder[EXPIRES] - now, waiters
end

