-- The handshake of a text that a restart guard stands before; RUN is the process that it is for.
-- In one execution it finds out which process this is, writes down what that means, and makes this very text callable
-- by EVALSHA, even if this is another process than RUN: its meta then shows the text as what it is.
-- KEYS: the last is meta; see guard.lua.
-- ARGV: 1 'handshake', 2 N, 3 the guard with its margin (us), 4 allowance (us), 5 TIME of the other nodes (us), 0 where
-- there are none, -1 where it is not known yet, 6 'bootstrap' (it is new: no guard where there is no meta),
-- 'nodes' (N changes: a guard from now on), 'durable' (it forgets nothing that meta has outlived), or '', 7 until when
-- it may be taken for new (us).
-- Reply: {code, run_id, TIME, till, guard, why}: 1 this is RUN; 0 it is not; 2 the node is of a quorum with so many
-- nodes as stands in the place of till; 3 nothing was done, since RUN was to be taken for new, and this is not RUN, or
-- it is too late for that.
if ARGV[1] == 'handshake' then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local function info(section)
    local said = redis.pcall('INFO', section)
    return type(said) == 'string' and said or ''
  end
  local function field(said, name) return string.match(said, name .. ':([^\r\n]*)') or '' end
  local meta, N, span, allow, mode = KEYS[#KEYS], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
  local m = redis.call('GET', meta) or ''
  local layout = string.match(m, '^%S+')
  if layout and layout ~= '1' then return redis.error_reply('GUARD layout ' .. layout) end
  local run, n, till, high, allowed, before, why = string.match(m, '^1 (%x+)/(%d+) (%d+) (%d+) (%d+) (%d+) (%a*)$')

  local server, replication = info('server'), info('replication')
  local id = field(server, 'run_id')
  -- What is refused here has made the text callable all the same: meta of another process must not let it vote.
  local function no(what)
    if run and run ~= id then redis.pcall('SET', meta, '1 0/' .. string.match(m, '/(.*)$')) end
    return redis.error_reply(what)
  end
  if id == '' then return no('GUARD info') end
  local release = field(server, 'redis_version')
  if tonumber(string.match(release, '^%d+') or '0') < 7 then return no('GUARD release ' .. release) end
  if field(replication, 'role') == 'slave' then return no('READONLY this is a replica') end
  local policy = field(info('memory'), 'maxmemory_policy')
  if policy ~= '' and policy ~= 'noeviction' then return no('GUARD policy ' .. policy) end

  till, high, before = tonumber(till or '0'), tonumber(high or '0'), tonumber(before or '0')
  span, allow = math.max(span, before), math.max(allow, tonumber(allowed or '0'))
  -- Durable is what a process forgot, and not what a replica never had.
  local durable = mode == 'durable' and not string.find(field(replication, 'master_replid2'), '[^0]')

  -- A guard from now on. Its end is in the time of the other nodes where that is ahead: a clock that was behind when the
  -- server started, and is then set, must not end it early. Where theirs is not known it does not begin.
  local others, fresh = tonumber(ARGV[5]), 9007199254740991
  if others >= 0 then fresh = math.min(math.max(now, others) + span, fresh) end
  if mode == 'nodes' then
    till, why = fresh, 'nodes'
  elseif not n then
    if mode ~= 'bootstrap' then
      till, why = fresh, 'new'
    elseif id ~= RUN or now > tonumber(ARGV[7]) then
      return {3, id, now, 0, 0, ''}
    else
      till, why = 0, ''
    end
  elseif n ~= N then
    return {2, id, now, tonumber(n), before, ''}
  elseif run ~= id then
    if not durable then till, why = fresh, 'restart' end
  elseif till > now then -- under way: a longer guard lengthens it; one that is too long, by a clock that was wrong, is cut
    till = math.min(till + math.max(span - before, 0), fresh)
  end
  if run ~= id and not (n and durable) then high = now end
  redis.call('SET', meta, string.format('1 %s/%s %.0f %.0f %.0f %.0f %s', id, N, till, high, allow, span, why))
  return {id == RUN and 1 or 0, id, now, till, span, why}
end
