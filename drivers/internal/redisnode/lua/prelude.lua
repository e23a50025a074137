-- Runs before every script that is bound to a process, after a line that sets RUN.
-- ARGV[1]: 'handshake', or the not-after in microseconds of the server's clock.
-- A bound text is loaded by EVAL with 'handshake' alone, so the execution that makes it callable by
-- EVALSHA is the one that checks the process. Reply of the handshake: {1 if this is RUN, run_id, TIME}.
if ARGV[1] == 'handshake' then
  local t = redis.call('TIME')
  local info = redis.pcall('INFO', 'server')
  local id = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
  return {id == RUN and 1 or 0, id, t[1] * 1000000 + t[2]}
end
