from standfast.models.openai.converters import ChatConverter as ChatConverter
Converter = ChatConverter
