-- Makes a lock its owner's for a time: one that nobody has, or that is the
-- owner's already. So the call may be repeated when its answer was lost, and a
-- lock that was flushed or ran out comes back.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner token of the acquisition
-- ARGV[2]  how long, in milliseconds
-- returns  1: it is the owner's; 0: it is somebody else's
local owner = redis.call('get', KEYS[1])
if owner and owner ~= ARGV[1] then
  -- We write none without a time to live. One that somebody else wrote must not
  -- stand for ever.
  if redis.call('pttl', KEYS[1]) == -1 then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  return 0
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
