-- Tells how a job stands, unless more is known of it already: a later version,
-- or this one with the whole job. A job with a greater id is a later one of the
-- same key.
--
-- KEYS[1]  the status of the job's key
-- ARGV[1]  how long it is kept, in milliseconds
-- ARGV[2]  id of the job
-- ARGV[3]  its version
-- ARGV[4]  its status
-- ARGV[5]  when it stood so
-- ARGV[6]  the worker of its last attempt, or ''
-- ARGV[7]  the job as it ended, or '' if it has not, or is not known whole
-- returns  1: it is stored; 0: more was known
local id, version, whole = unpack(redis.call('hmget', KEYS[1], 'id', 'version', 'whole'))
if id and id > ARGV[2] then
  return 0
end
if id == ARGV[2] then
  local ahead = tonumber(version) - tonumber(ARGV[3])
  if ahead > 0 or ahead == 0 and whole == '1' and ARGV[7] == '' then
    return 0
  end
end
redis.call('hset', KEYS[1], 'id', ARGV[2], 'version', ARGV[3], 'status', ARGV[4], 'at', ARGV[5], 'worker', ARGV[6],
  'whole', ARGV[7] == '' and '0' or '1', 'job', ARGV[7])
redis.call('pexpire', KEYS[1], ARGV[1])
return 1
