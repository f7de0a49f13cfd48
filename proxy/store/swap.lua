#!lua
-- KEYS: a hash. ARGV: field, its value, another value. Returns 1 if the field had that value; it then has the other one.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
