-- First contact: which server process is this, and what time does its clock show?
-- No KEYS except one that routes the call; no ARGV. The only script that is not bound to a process.
-- Reply: {run_id ('' if INFO is not allowed), TIME in microseconds, its policy of eviction, or '' if it evicts nothing}.
local t = redis.call('TIME')
local info, memory = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'memory')
local id = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local policy = ''
if type(memory) == 'string' and string.match(memory, 'maxmemory:(%d+)') ~= '0' then
  policy = string.match(memory, 'maxmemory_policy:([%w-]*)') or ''
  if policy == 'noeviction' then policy = '' end
end
return {id, t[1] * 1000000 + t[2], policy}
