-- Part of acquire and batch, behind lua/counter.lua: completes grants whose counter is not a little behind the clock.
-- correct_token completes a grant after the lock was taken at token x and x was written to its counter, which had the
-- value old. The grant has so many more tokens before the last, x. It returns the token of the grant; or nil and an error,
-- and has undone the grant.
local function correct_token(lock, counted, me, px, x, old, ms, more)
  local first, counter, why = x, parsed(old)
  if not old then
    x, why = look(x, true, more)
  elseif counter then
    x = math.max(x, counter + more + 1)
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
