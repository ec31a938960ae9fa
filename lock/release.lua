-- Gives a lock back if it is its owner's. A holder that comes late deletes
-- nobody else's.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner token of the acquisition
-- returns  1: it was the owner's; 0: it was not
if redis.call('get', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('del', KEYS[1])
