-- The same when one waits who is alive, and nobody behind it has to be told.
if alone then
  local first = redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
  local waiter = shape == 'lock 1' and (waiting == 1 or looks_soon(tonumber(first[4]))) and alive(first[1])
  if waiter then
    holders = {}
    hand_to(waiter)
    save()
    return 1
  end
end
