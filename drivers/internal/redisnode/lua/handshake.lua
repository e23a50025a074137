-- The handshake of a text with a restart guard; RUN is the process that the text is for, and TERMS are its terms.
-- In one execution it finds out which process this is, records the consequence in meta, and makes this very text
-- callable by EVALSHA, even if this is another process than RUN or has other terms: the text then sees that in meta.
-- KEYS: the last is meta; see guard.lua.
-- ARGV: 1 'handshake', 2 TIME of the other nodes at most (us), 0 if there are none, -1 if it is not known yet,
-- 3 'bootstrap' (the process is new: no guard if there is no meta), 'changed' (N or the terms change to those in 5: a
-- guard from now on), 'durable' (the process forgets nothing that meta has outlived), or '', 4 until when the process may
-- be taken for new (us), 5 the terms to take if there is no meta, or to change to; if 2 is a time, those of the others.
-- Reply: {code, run_id, TIME, till, terms, why}. Codes: 1 this is RUN, and its terms are TERMS; 0 it is not RUN;
-- 2 the node is of another number of nodes; 3 nothing was done, since RUN should be taken for new and this is not RUN, or
-- it is too late for that; 4 it is RUN and has other terms; 5 nothing was done, since the time of the other nodes is not
-- known yet.
if ARGV[1] == 'handshake' then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local function info(section)
    local said = redis.pcall('INFO', section)
    return type(said) == 'string' and said or ''
  end
  local function field(said, name) return string.match(said, name .. ':([^\r\n]*)') or '' end
  local function numbers(terms)
    local list = {}
    for digits in string.gmatch(terms, '%d+') do list[#list + 1] = tonumber(digits) end
    return list
  end
  local meta, mode, others = KEYS[#KEYS], ARGV[3], tonumber(ARGV[2])
  local m = redis.pcall('GET', meta) or ''
  if type(m) == 'table' then return string.find(m.err, 'WRONGTYPE', 1, true) and redis.error_reply('GUARD type') or m end
  local layout = string.match(m, '^%S+')
  if layout and layout ~= '2' then return redis.error_reply('GUARD layout ' .. layout) end
  local run, terms, till, high, why = string.match(m, '^2 (%x+)/(%S+) (%d+) (%d+) %S+ (%a*)$')

  local server, replication = info('server'), info('replication')
  local id = field(server, 'run_id')
  -- What is refused here has made the text callable all the same: meta of another process must not let it vote.
  local function no(what)
    if run and run ~= id then redis.pcall('SET', meta, '2 0/' .. string.match(m, '/(.*)$')) end
    return redis.error_reply(what)
  end
  if id == '' then return no('GUARD info') end
  local release = field(server, 'redis_version')
  if tonumber(string.match(release, '^%d+') or '0') < 7 then return no('GUARD release ' .. release) end
  if field(replication, 'role') == 'slave' then return no('READONLY this is a replica') end
  local policy = field(info('memory'), 'maxmemory_policy')
  if policy ~= '' and policy ~= 'noeviction' then return no('GUARD policy ' .. policy) end

  till, high, why = tonumber(till or '0'), tonumber(high or '0'), why or ''
  -- Durable is what a process forgot, and not what a replica never had.
  local durable = mode == 'durable' and not string.find(field(replication, 'master_replid2'), '[^0]')

  if not terms then
    if ARGV[5] ~= TERMS then return {4, id, now, 0, ARGV[5], ''} end
    if mode == 'bootstrap' and (id ~= RUN or now > tonumber(ARGV[4])) then return {3, id, now, 0, TERMS, ''} end
    if mode ~= 'bootstrap' and mode ~= 'changed' and others < 0 then return {5, id, now, 9007199254740991, TERMS, 'new'} end
    terms = TERMS
  elseif mode ~= 'changed' and numbers(terms)[1] ~= numbers(ARGV[5])[1] then
    return {2, id, now, numbers(terms)[1], terms, ''}
  end
  if mode == 'changed' then
    -- Leases that were granted by other permissions (guard, excuse, allowance) may live until a quarantine without them is
    -- over. Until then the protections (quarantine, grace, drift) do not shrink, as this server or another may forget.
    local old, new = numbers(terms), numbers(ARGV[5])
    if till > now or old[2] ~= new[2] or old[3] ~= new[3] or old[4] ~= new[4] then
      new[5] = math.max(new[5], old[5] + math.max(new[3] - old[3], 0))
      new[6], new[7] = math.max(new[6], old[6]), math.max(new[7], old[7])
    end
    terms = string.format('%.0f/%.0f/%.0f/%.0f/%.0f/%.0f/%.0f', unpack(new))
  end

  -- A process that came back with an older memory may have forgotten later terms, and leases of a longer guard under them.
  -- The others remember these terms, and it counts their quarantine.
  local grown = false
  if others > 0 and mode ~= 'changed' and run and (run ~= id and not durable or till > now) then
    local own, theirs = numbers(terms), numbers(ARGV[5])
    grown = theirs[5] > own[5]
    own[5] = math.max(own[5], theirs[5])
    terms = string.format('%.0f/%.0f/%.0f/%.0f/%.0f/%.0f/%.0f', unpack(own))
  end

  -- A guard from now on. Its end is in the time of the other nodes where that is ahead: a clock that was behind when the
  -- server started, and is then set, must not end it early. Where theirs is not known it does not begin, nor where it was
  -- asked for an earlier process: this one may have forgotten since.
  local fresh = 9007199254740991
  if others == 0 or others > 0 and id == RUN then fresh = math.min(math.max(now, others) + numbers(terms)[5], fresh) end
  if mode == 'changed' then
    till, why = fresh, 'changed'
  elseif not run then
    till, why = 0, ''
    if mode ~= 'bootstrap' then till, why = fresh, 'new' end
  elseif run ~= id then
    if not durable then till, why = fresh, 'restart' end
  elseif till > now then -- under way: one that is too long, by a clock that was wrong, is cut
    till = grown and fresh or math.min(till, fresh)
  end
  if run ~= id and not (run and durable) then high = now end
  redis.call('SET', meta, string.format('2 %s/%s %.0f %.0f - %s', id, terms, till, high, why))
  return {id ~= RUN and 0 or terms ~= TERMS and 4 or 1, id, now, till, terms, why}
end
