-- The handshake of a text that a restart guard stands before. RUN and BOND (RUN/N) are set; META is KEYS' last.
-- In one execution it finds out which process this is, writes down what that means, and makes this very text callable
-- by EVALSHA, even if this is another process than RUN: its meta then shows the text as what it is.
-- ARGV: 1 'handshake', 2 N, 3 the guard with its margin (us), 4 allowance (us), 5 TIME of the other nodes (us), 0 where
-- there are none, -1 where it is not known yet, 6 'bootstrap' (it is new: no guard where there is no meta),
-- 'nodes' (N changes: a guard from now on), 'durable' (it forgets nothing that meta has outlived), or ''.
-- Reply: {code, run_id, TIME, till, guard, why}: 1 this is RUN; 0 it is not; 2 the node is of a quorum with so many
-- nodes as stands in the place of till.
if ARGV[1] == 'handshake' then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local function info(section, field)
    local said = redis.pcall('INFO', section)
    return type(said) == 'string' and string.match(said, field .. ':([^\r\n]*)') or ''
  end
  local function us(x) return string.format('%.0f', x) end
  local id = info('server', 'run_id')
  if id == '' then return redis.error_reply('GUARD info') end
  if info('replication', 'role') == 'slave' then return redis.error_reply('READONLY this is a replica') end
  local policy = info('memory', 'maxmemory_policy')
  if policy ~= '' and policy ~= 'noeviction' then return redis.error_reply('GUARD policy ' .. policy) end

  local meta, N, span, allow, mode = KEYS[#KEYS], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
  local m = redis.call('HMGET', meta, 'fmt', 'bond', 'till', 'high', 'span', 'allow', 'why')
  if m[1] and m[1] ~= '1' then return redis.error_reply('GUARD layout ' .. m[1]) end
  local run, n = string.match(m[2] or '', '^(%x*)/(%d+)$')
  local till, high, why = tonumber(m[3] or '0'), tonumber(m[4] or '0'), m[7] or ''
  local before = tonumber(m[5] or '0')
  span, allow = math.max(span, before), math.max(allow, tonumber(m[6] or '0'))

  -- A guard from now on. Its end is in the time of the other nodes where that is ahead: a clock that was behind when the
  -- server started, and is then set, must not end it early. Where theirs is not known it does not begin.
  local others, fresh = tonumber(ARGV[5]), 9007199254740991
  if others >= 0 then fresh = math.min(math.max(now, others) + span, fresh) end
  if mode == 'nodes' then
    till, why = fresh, 'nodes'
  elseif not n then
    if mode == 'bootstrap' then till, why = 0, '' else till, why = fresh, 'new' end
  elseif n ~= N then
    return {2, id, now, tonumber(n), before, ''}
  elseif run ~= id then
    if mode ~= 'durable' then till, why = fresh, 'restart' end
  elseif till > now then -- under way: a longer guard lengthens it; one that is too long, by a clock that was wrong, is cut
    till = math.min(till + math.max(span - before, 0), fresh)
  end
  if run ~= id then high = now end
  redis.call('HSET', meta, 'fmt', '1', 'bond', id .. '/' .. N, 'till', us(till), 'high', us(high), 'span', us(span),
    'allow', us(allow), 'why', why)
  return {id == RUN and 1 or 0, id, now, till, span, why}
end
