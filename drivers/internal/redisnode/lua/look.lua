-- What does the server remember of locks? Changes nothing; not bound to a process.
-- KEYS: 1 meta. No ARGV.
-- Reply: {run_id ('' where INFO is not allowed), TIME, seconds since its start, bond or '', till, guard (us)}.
local t = redis.call('TIME')
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' then info = '' end
local m = redis.call('HMGET', KEYS[1], 'bond', 'till', 'span')
return {string.match(info, 'run_id:(%x+)') or '', t[1] * 1000000 + t[2],
  tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or '0'), m[1] or '', tonumber(m[2] or '0'), tonumber(m[3] or '0')}
