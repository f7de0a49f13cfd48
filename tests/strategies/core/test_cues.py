"""What people say when they set rules, preferences, decisions and limits, and what only sounds like it."""

import pytest

from strategies.core.cues import is_cued, is_weak

RULES = """
For the rest of this session, answer in Portuguese.
When you quote a price, give it in euros.
If a test fails, stop and show me the output.
Before answering, search the docs.
Start each reply with the ticket number.
I'd rather have bullet points than prose.
I like short answers.
The client prefers weekly updates.
Let’s use Redis for the queue.
We decided to host it in Frankfurt.
The deadline is 14 March.
The total spend may not exceed $500.
Maria owns the billing module.
Give all distances in kilometres.
Every endpoint needs a test.
Customer data stays in Ireland.
No third-party trackers.
I'm allergic to peanuts.
We only support Python 3.11 and newer.
Could you answer in German from now on?
在本次会话剩余的时间里，请用文言文回答。
回答之前先核对一遍数据。
每条回复都以“完毕”结尾。
给出价格时请用人民币。
我更喜欢用表格。
预算上限是800元。
由王芳负责前端。
我们决定用Postgres。
如果测试失败，先停下来告诉我。
所有日期用ISO格式。
""".strip().splitlines()
WISHES = """
Use metric units.
Please prioritize direct flights.
Temperatures should be in Celsius.
We still need to migrate the users table.
结果最好按日期排序。
我们还需要补集成测试。
""".strip().splitlines()
NONE = """
Fix the failing test.
Please write a function that prints all even numbers.
I have to go now, talk to you tomorrow.
I think it must be a race condition.
I always forget my umbrella.
When I run the tests, two of them fail.
He never answers his phone.
List all countries in Africa.
They are great and always cheer me on.
What is the deadline?
Who owns the billing module?
I decided to quit my job last year.
Don't worry about it.
Let me know if you need anything.
if (num % 2 == 0) {
{"error": "the name must not be empty"}
[x] Opening connection to host on port 80
请写一个快速排序。
如果我想学习编程，应该从哪里开始？
他总是迟到。
当我打开文件时，程序崩溃了。
我每天都去跑步。
截止日期是什么时候？
请推荐一家酒店，最好便宜一点。
""".strip().splitlines()


@pytest.mark.parametrize("said", RULES)
def test_rules_preferences_decisions_and_limits_bind(said: str) -> None:
    assert is_cued(said)
    assert not is_weak(said)


@pytest.mark.parametrize("said", WISHES)
def test_wishes_and_tasks_are_weak(said: str) -> None:
    assert is_weak(said)


@pytest.mark.parametrize("said", NONE)
def test_stories_questions_requests_and_code_bind_nobody(said: str) -> None:
    assert not is_cued(said)
