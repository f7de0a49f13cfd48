"""What servers answered: bodies as they were published in issues, documentation and tests of other projects, shortened
by members that say nothing of windows."""

import json
from typing import Any

# vLLM, reported with a window far under the 131,072 that the model was made for.
VLLM = json.loads("""
{"object":"list","data":[{"id":"meta-llama/Meta-Llama-3.1-8B-Instruct","object":"model","created":1723770563,
 "owned_by":"vllm","root":"meta-llama/Meta-Llama-3.1-8B-Instruct","parent":null,"max_model_len":8096,
 "permission":[{"id":"modelperm-7c4c5de9b37b4f76800eb2d03b845b00","object":"model_permission"}]}]}
""")

VLLM_WITH_ADAPTER = json.loads("""
{"object":"list","data":[
 {"id":"base","object":"model","owned_by":"vllm","root":"base","parent":null,"max_model_len":16384},
 {"id":"sql-lora","object":"model","owned_by":"vllm","root":"/adapters/sql","parent":"base","max_model_len":null}]}
""")

SGLANG = json.loads("""
{"object":"list","data":[{"id":"Qwen/Qwen3.5-4B","object":"model","created":1784825047,"owned_by":"sglang",
 "root":"Qwen/Qwen3.5-4B","parent":null,"max_model_len":16384}]}
""")

# llama-server of 2026: the list has the window of a slot; one of 2025: it has the ceiling only.
LLAMA_CPP = json.loads("""
{"models":[{"name":"Ling-3.0-flash-Q4_K_M","model":"Ling-3.0-flash-Q4_K_M","type":"model","capabilities":["completion"]}],
 "object":"list","data":[{"id":"Ling-3.0-flash-Q4_K_M","aliases":["Ling-3.0-flash-Q4_K_M"],"tags":[],"object":"model",
 "created":1786790315,"owned_by":"llamacpp","meta":{"vocab_type":2,"n_vocab":157184,"n_ctx":65536,"n_ctx_train":262144,
 "n_embd":2560,"n_params":127486405600,"size":77003601792,"ftype":"Q4_K - Medium"}}]}
""")
LLAMA_CPP_OLDER = json.loads("""
{"object":"list","data":[{"id":"gemma.gguf","object":"model","created":1790000000,"owned_by":"llamacpp",
 "meta":{"vocab_type":1,"n_vocab":262144,"n_ctx_train":131072,"n_embd":2560}}]}
""")
LLAMA_CPP_ROUTER = json.loads("""
{"object":"list","data":[
 {"id":"gemma","object":"model","owned_by":"llamacpp","status":{"value":"loaded","args":["llama-server","-ctx","8192"]},
  "meta":{"n_ctx":8192,"n_ctx_train":131072}},
 {"id":"qwen","object":"model","owned_by":"llamacpp","status":{"value":"unloaded","args":["llama-server","-ctx","4096"]}}]}
""")
LLAMA_CPP_PROPS = json.loads("""
{"default_generation_settings":{"id":0,"id_task":-1,"n_ctx":1024,"speculative":false,"is_processing":false,
 "params":{"n_predict":-1,"max_tokens":-1}},"total_slots":4,"model_path":"../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
 "chat_template":"...","modalities":{"vision":false},"build_info":"b(build number)-(build commit hash)"}
""")
LLAMA_CPP_SLOTS = json.loads("""
[{"id":0,"id_task":135,"n_ctx":65536,"is_processing":true},{"id":1,"id_task":0,"n_ctx":65536,"is_processing":false}]
""")

OLLAMA = json.loads("""
{"object":"list","data":[{"id":"gemma4:latest","object":"model","created":1768091493,"owned_by":"library"},
 {"id":"qwen3:8b","object":"model","created":1767847899,"owned_by":"library"}]}
""")
OLLAMA_PS = json.loads("""
{"models":[{"name":"gemma4:latest","model":"gemma4:latest","size":6591830464,
 "digest":"c6eb396dbd5992bbe3f5cdb947e8bbc0ee413d7c17e2beaae69f5d569cf982eb",
 "details":{"parent_model":"","format":"gguf","family":"gemma4","parameter_size":"8.0B","quantization_level":"Q4_K_M"},
 "expires_at":"2025-10-17T16:47:07.93355-07:00","size_vram":5333539264,"context_length":4096}]}
""")
OLLAMA_PS_OLDER = json.loads("""
{"models":[{"name":"mistral:latest","model":"mistral:latest","size":5137025024,"digest":"2ae6f6dd7a3d",
 "expires_at":"2024-06-04T14:38:31.83753-07:00","size_vram":5137025024}]}
""")

LM_STUDIO = json.loads("""
{"data":[{"id":"qwen3-8b","object":"model","owned_by":"organization_owner"},
 {"id":"gemma-3-4b","object":"model","owned_by":"organization_owner"}],"object":"list"}
""")
LM_STUDIO_V0 = json.loads("""
{"object":"list","data":[
 {"id":"qwen3-8b","object":"model","type":"llm","publisher":"qwen","arch":"qwen3","compatibility_type":"gguf",
  "quantization":"Q4_K_M","state":"loaded","max_context_length":131072,"loaded_context_length":4096},
 {"id":"gemma-3-4b","object":"model","type":"llm","publisher":"google","arch":"gemma3","compatibility_type":"gguf",
  "quantization":"Q8_0","state":"not-loaded","max_context_length":32768}]}
""")
LM_STUDIO_V1 = json.loads("""
{"models":[{"type":"llm","publisher":"qwen","key":"qwen/qwen3-8b","display_name":"Qwen3 8B","architecture":"qwen3",
 "loaded_instances":[{"id":"qwen/qwen3-8b","config":{"context_length":32768}},
                     {"id":"qwen/qwen3-8b:2","config":{"context_length":8192}}],
 "max_context_length":40960,"format":"gguf"},
 {"type":"llm","publisher":"google","key":"google/gemma-3-4b","loaded_instances":[],"max_context_length":131072}]}
""")
TGI = json.loads("""
{"object":"list","data":[{"id":"HuggingFaceH4/zephyr-7b-beta","object":"model","created":0,
 "owned_by":"HuggingFaceH4/zephyr-7b-beta"}]}
""")
TGI_INFO = json.loads("""
{"model_id":"HuggingFaceH4/zephyr-7b-beta","model_sha":"b70e0c9a2d9e14bd1e812d3c398e5f313e93b473",
 "model_pipeline_tag":"text-generation","max_concurrent_requests":128,"max_best_of":2,"max_stop_sequences":4,
 "max_input_tokens":1024,"max_total_tokens":2048,"validation_workers":2,"max_client_batch_size":4,
 "router":"text-generation-router","version":"2.0.4"}
""")
TGI_INFO_OLDER = json.loads("""
{"model_id":"bigscience/blomm-560m","model_dtype":"torch.float16","model_device_type":"cuda",
 "max_concurrent_requests":128,"max_best_of":2,"max_input_length":1024,"max_total_tokens":2048,
 "waiting_served_ratio":1.2,"max_batch_total_tokens":32000,"version":"0.9.4"}
""")

LITELLM = json.loads("""
{"data":[{"id":"work-laptop-smart","object":"model","created":1677610602,"owned_by":"openai","max_input_tokens":999999},
 {"id":"local","object":"model","created":1677610602,"owned_by":"openai"}],"object":"list"}
""")
LITELLM_INFO = json.loads("""
{"data":[
 {"model_name":"work-laptop-smart","litellm_params":{"use_in_pass_through":false,"model":"gpt-4o"},
  "model_info":{"id":"a","db_model":true,"key":"gpt-4o","max_tokens":16384,"max_input_tokens":128000,
                "max_output_tokens":16384,"litellm_provider":"openai"}},
 {"model_name":"work-laptop-smart","litellm_params":{"model":"azure/gpt-4-32k"},
  "model_info":{"id":"b","db_model":true,"key":"azure/gpt-4-32k","max_input_tokens":32768}},
 {"model_name":"local","litellm_params":{"api_base":"http://127.0.0.1:11434","model":"ollama/qwen3:0.6b"},
  "model_info":{"id":"c","db_model":false,"key":"ollama/qwen3:0.6b","max_tokens":40960,"max_input_tokens":40960}},
 {"model_name":"Qwen2.5-32B","litellm_params":{"model":"hosted_vllm/Qwen/Qwen2.5-32B-Instruct-GPTQ-Int8"},
  "model_info":{"id":"d","db_model":false,"max_tokens":null,"max_input_tokens":null,"max_output_tokens":null}}]}
""")

OPENROUTER = json.loads("""
{"data":[
 {"id":"qwen/qwen3-coder:free","context_length":1048576,
  "top_provider":{"context_length":262000,"max_completion_tokens":262000,"is_moderated":false}},
 {"id":"openai/gpt-4o","context_length":128000,
  "top_provider":{"context_length":null,"max_completion_tokens":16384,"is_moderated":true}}]}
""")

GROQ = json.loads("""
{"object":"list","data":[{"id":"llama-3.3-70b-versatile","object":"model","created":1733447754,"owned_by":"Meta",
 "active":true,"context_window":131072,"public_apps":null,"max_completion_tokens":32768},
 {"id":"gemma2-9b-it","object":"model","created":1693721698,"owned_by":"Google","active":true,"context_window":8192}]}
""")

TOGETHER = json.loads("""
[{"id":"zai-org/GLM-4.6","object":"model","created":0,"type":"chat","organization":"Zai","context_length":202752,
  "pricing":{"input":0.6,"output":2.2}},
 {"id":"black-forest-labs/FLUX.1","object":"model","created":0,"type":"image","pricing":{"input":0,"output":0}}]
""")
MOONSHOT = json.loads("""
{"object":"list","data":[{"id":"kimi-k9","object":"model","created":1753000000,"owned_by":"moonshot",
 "context_length":262144,"supports_image_in":true}]}
""")

OPENAI = json.loads("""
{"object":"list","data":[{"id":"gpt-4-0613","object":"model","created":1686588896,"owned_by":"openai"},
 {"id":"gpt-3.5-turbo","object":"model","created":1677610602,"owned_by":"openai"},
 {"id":"o1","object":"model","created":1734375816,"owned_by":"system"}]}
""")

EVERY: dict[str, Any] = {name: value for name, value in globals().items() if name.isupper()}
