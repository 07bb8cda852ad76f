from standfast.models import LitellmModel as LitellmModel
