"""One conversation as tokens."""

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.template_renderer import BadChatTemplate, Messages
from ppojob_trainer.json_value import Json


def encode_chat(chat: ChatTokenizer, messages: Messages, **variables: Json) -> list[int]:
    """The ids of a conversation; raises what the template refuses."""
    (outcome,) = chat.encode_chats([messages], variables)
    if isinstance(outcome, BadChatTemplate):
        raise outcome
    return outcome
