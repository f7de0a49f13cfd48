#!lua
-- KEYS: sum. ARGV: ttl in ms, then amounts by name, in turns.
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
