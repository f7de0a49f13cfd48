#!lua
-- KEYS: entries of the index. ARGV: session, ttl in ms. Makes the entries lead to the session.
for i = 1, #KEYS do
    redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
end
return 1
