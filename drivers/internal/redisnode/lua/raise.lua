-- Stands in acquire and batch, behind lua/counter.lua, for the grants whose counter is not a little behind the clock.
-- raise completes a grant: the lock is taken at x, which is also in its counter, and old was there. It returns the token
-- that the grant gets; or nil and an error, and has undone the grant.
local function raise(lock, counted, me, px, x, old, ms)
  local counter, first, why = old and tonumber(old), x, nil
  if not old then
    x, why = look(x, true)
  elseif not counter then
    why = redis.error_reply('ERR the fencing counter of this lock holds something else')
  else
    if counter >= x then x = counter + 1 end
    if x > MOST then
      why = redis.error_reply('ERR the fencing counter of this lock is at its end')
    elseif enters(x, counter) then
      x, why = look(x, false)
    end
  end
  if why then -- undo
    redis.call('DEL', lock)
    if old then redis.pcall('SET', counted, old) else redis.pcall('DEL', counted) end
    return nil, why
  end
  if x ~= first then
    local fence = digits(x)
    redis.call('SET', counted, fence, 'PX', life(x, ms))
    redis.call('SET', lock, me .. fence, 'PX', px)
  end
  return x
end
