from standfast.voice import AudioInput as AudioInput
from standfast.voice import StreamedAudioInput as StreamedAudioInput
from standfast.voice.audio import DEFAULT_SAMPLE_RATE as DEFAULT_SAMPLE_RATE
